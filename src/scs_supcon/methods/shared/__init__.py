"""What several methods share; the methods themselves are the files beside this folder."""

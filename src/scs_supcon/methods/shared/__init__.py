"""Code that several methods share; the methods themselves are the files in the parent folder."""

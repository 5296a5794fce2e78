"""`scs serve`: a web app and a REST API for one run."""

"""`scs reproduce`: the tables and figures of the paper, at any scale."""

"""The history of the tables, a file for each revision."""

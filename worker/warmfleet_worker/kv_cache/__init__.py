"""Block pool, prefix cache, block tables and the layout of a block. Imports no torch and no other room."""

"""jevcompat, another project's check of servers for typed decisions, held against the document."""

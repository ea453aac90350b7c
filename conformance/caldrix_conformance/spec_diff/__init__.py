"""What became of a contract's clauses since a revision, with the cases and goldens that moved.

`python -m caldrix_conformance.spec_diff [REV]`; see command.py.
"""

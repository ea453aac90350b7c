"""The conformance suite: black-box checks of a server's HTTP contract against any base URL.

It knows the contract's clauses (spec/) and captured answers (goldens/), and nothing of the server
it looks at; nothing of caldrix is imported here.
"""

"""The contract `caldrix`: what its targets can do, and the forms of its requests and answers."""

"""HTTP: what the contracts share stands here; each contract has a folder of its own."""

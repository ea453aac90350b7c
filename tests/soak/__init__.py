"""A seeded load of mixed requests on a whole server, each of whose answers is checked."""

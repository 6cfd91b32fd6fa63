"""Kafka's own protocol on the clients' listener: a translator, without a state of its own."""

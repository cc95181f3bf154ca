"""gRPC: how errors travel, who calls, and how servers and channels are made."""

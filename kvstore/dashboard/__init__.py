"""What a pool does, at a glance: every process's metrics, read and charted."""

"""Moving strips between slots and callers' memory."""

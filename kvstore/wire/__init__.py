"""The wire: message stubs generated from `proto/`."""

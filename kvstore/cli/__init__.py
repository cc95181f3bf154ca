"""The `moonpool` command: one module a group of subcommands, each with `add` and its runners."""

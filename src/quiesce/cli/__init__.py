"""The command line: one module per family of verbs, each of them a thin face over `ControlService`."""

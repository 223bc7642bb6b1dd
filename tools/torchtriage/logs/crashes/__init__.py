"""Python exceptions and native crashes: put together per process, and who was first."""

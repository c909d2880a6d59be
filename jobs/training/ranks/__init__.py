"""What ranks tell each other: ``gathering`` (JSON in tensors, never a pickle) as ``typed_json``."""

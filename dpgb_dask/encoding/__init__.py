"""Values become integers: by the schema and the value alone, on the private side and in prediction alike."""

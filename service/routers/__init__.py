"""One file a resource: parse, call one verb of the layer below, shape the answer."""

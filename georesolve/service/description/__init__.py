"""What OpenAPI and OGC API - Processes say of the service."""

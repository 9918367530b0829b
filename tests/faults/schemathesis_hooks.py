"""What schemathesis does not know by itself: the bytes of an upload are bytes."""

import schemathesis

schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")

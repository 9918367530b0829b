"""Runs the migrations on the connection that `service.database` gives, in its transaction."""

from alembic import context

from service.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

"""Runs the migrations on the connection that `service.store.engine` opened."""

from alembic import context

from georesolve.service.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

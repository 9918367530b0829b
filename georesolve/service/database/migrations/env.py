"""Runs the migrations on the connection that `service.database.engine` opened."""

from alembic import context

from georesolve.service.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

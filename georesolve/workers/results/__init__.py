"""The result of a job: parts, a manifest of them, and the file that they make up."""

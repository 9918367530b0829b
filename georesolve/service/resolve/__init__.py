"""From two point sets and options to an answer, or to a job."""

"""What a client is told of a job that failed."""

from georesolve.service.errors import JobFailed, Problem, disk_full, is_disk_full
from georesolve.workers.jobs import CarriedTooLong
from georesolve.workers.places import OutputFailed
from georesolve.workers.sources import SourceFailed
from georesolve.workers.suspects import WorkerLost


def problem_of_guilt() -> Problem:
    """What the client is told of a job whose services died again and again."""
    return JobFailed(
        "the service died each time that it ran this job, at last alone, so it is not tried again: "
        "a job may need more memory than there is; send fewer rows at a time, or carry fewer or "
        "shorter columns"
    )


def problem_of_failure(error: BaseException) -> Problem:
    """What the client is told of a job that ended with an error of ours."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, CarriedTooLong | OutputFailed | SourceFailed | WorkerLost):
        return JobFailed(str(error))
    if is_disk_full(error):
        return disk_full()
    return JobFailed("an error of the service; its log has the details")

"""The front end: HTTP, the job store and files from strangers. Never imports kernels or CUDA."""

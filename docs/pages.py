"""Which files the site has: those of the repository that its pages are and lead to, as they lie.

So a link leads to the same page there as where the files are read.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_SHOWN = (
    "*.md",
    ".env.example",
    "deploy/**/*",
    "docs/**/*",
    "samples/*",
    "tests/clients/*",
    "tests/containers/*",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of the theme and those below `docs_dir`."""
    for file in [*files]:
        if file.src_dir == config.docs_dir:
            files.remove(file)
    root = Path(config.config_file_path).parent
    for path in sorted({path for pattern in _SHOWN for path in root.glob(pattern)}):
        name = path.relative_to(root)
        if path.is_file() and "__pycache__" not in name.parts:
            files.append(File(str(name), str(root), config.site_dir, config.use_directory_urls))
    return files

"""The page that a browser shows: plain HTML, one style sheet and a few modules of JavaScript."""

"""What is handed out as files: ``starter/``, the harness tree a new scenario begins with; ``client/reef_wrapper.py``, the one file that is
installed on a user's machine as ``reef-<adapter>``; and ``install.sh.j2``, the script that installs it. Read through importlib.resources;
nothing in here is imported by the platform."""

"""Bytes with an identity: one bare git repository per deployment, and content ids that do not depend on git.

:mod:`reef.artifacts.tree` says which paths a tree may hold and what its content id is; :mod:`reef.artifacts.objects` writes git objects
without a work tree; :mod:`reef.artifacts.lfs` keeps large files, as Git LFS does; :mod:`reef.artifacts.folders` takes a folder in and lays
one out; :mod:`reef.artifacts.reading` reads many objects at once, for an audit;
:class:`~reef.artifacts.repository.ArtifactRepository` is what the rest of the house uses; recipes edit files in a
:mod:`~reef.artifacts.worktree`. Everything written here is immutable. Not here: which commit serves (``reef.releases`` decides that, in
SQL; branches and tags are its mirror), and what makes a tree a harness (``reef.harness.tree``).
"""

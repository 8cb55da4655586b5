"""`python -m zellige_ray`: the command line where nothing is installed, as under Ray's `working_dir`."""

from zellige_ray.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""An E2B-compatible server for programs written for E2B: `cellblock serve --e2b`."""

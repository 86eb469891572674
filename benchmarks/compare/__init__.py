"""fedmf beside other libraries, each doing the same work in one sitting: `make compare`."""

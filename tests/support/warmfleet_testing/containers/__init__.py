"""What `make check-containers` needs: packages, a base image, a builder, the release under test."""

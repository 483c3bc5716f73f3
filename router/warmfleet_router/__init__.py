"""HTTP front door: knows which worker holds which prefix and steers every request to the warm one."""

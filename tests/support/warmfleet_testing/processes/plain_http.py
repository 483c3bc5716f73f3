"""The TLS setting of these tests' HTTP clients, none of which uses TLS.

A client that is given nothing reads the system's certificates when it is made: 25 ms, where a request on
loopback takes one.
"""

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

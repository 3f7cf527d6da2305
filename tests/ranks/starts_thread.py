"""Preloaded in a fork server, it makes forking unsafe."""

import threading
import time

threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

"""Running operations on CPU tensors over TCP connections of our own.

moves     what a rank sends and receives, and which bytes must be done before which
frames    what travels on a connection
flow      one operation on its way: how far each move is, sums folded in as bytes arrive
link      one connection: frames out, frames in
grants    what others may send to this rank, and when
sizes     of frames and windows
port      how much the kernel is given to send
sending   which bytes this rank sends next
engine    one thread that drives all links
"""

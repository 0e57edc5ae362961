"""srtkit plugin `srtkit-plugin-transport-zmq`."""

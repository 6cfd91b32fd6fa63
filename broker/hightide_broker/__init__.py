"""hightide_broker: the server. Core decides, storage remembers, runtime acts."""

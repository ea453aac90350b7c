"""Images in prompts: from a content part's data URL to tiles of pixels and the tokens around them.

The way of an image, each step in a module of its own:

1. `parts`: the URL, its limits, and the header of the file in it (`png`, `jpeg`, `webp`, `exif`).
2. `tiling`: how the image is resized and split, from its width and height alone.
3. `layout`: the prompt with each image's tokens in it, so that its length is known.
4. `decoding`: the pixels; all that came before has decoded none.
5. `preprocessing`: the tiles as a model's tower takes them.

`processor` holds what of this a model's own files decide (`settings`), and `eyes` has the tower
behind it: tiles become features, off the event loop. Of an image on the user's disk `image_files`
is the first step.
"""

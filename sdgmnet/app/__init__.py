"""`sdgmnet app`: a page in the browser. `page` is the only module that needs gradio; the others are plain functions."""

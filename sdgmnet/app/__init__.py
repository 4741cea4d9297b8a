"""`sdgmnet app`: a page in the browser. `page`, `setting` and the `_tab` modules need gradio, the others do not."""

# An example in a comment is indented by three blanks; Markdown wants more to take it for code.
s,^\( *///\)   ,\1       ,

begin again
: x recurse ; x
1 0 /
-1 allot
1000000000 allot
0 @
here 1 cells - !
s" ls" system
s" /etc/passwd" slurp-file type
bye
abort
quit
0 0 throw
-28 throw
2147483647 0 do i . loop
begin 1 again
begin 1 >r again
r> r> r>
' x execute
evaluate
[
]
: : ;
include /etc/passwd
1 2 3 4 5 max-n . s" x" included
key
accept
page
hex ffffffffffffffff .
forget see
see see
words
.s .s .s
0 execute
: a postpone recurse ; immediate
here 100000000 65 fill
pad 1000000 type
1000000 spaces
s" a" 100000000 type
-1 resize throw

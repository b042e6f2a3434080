(* A strict reader of JSON. Trusted: that what it returns is what the text says.

   Stricter than JSON: a field given twice, a number with a fraction or an exponent, and anything
   after the value are refused, so that no other reader can see another value in the same text.
   Numbers beyond 18 digits become [max_int], decimal fractions stay texts, and strings keep their
   escapes unread. *)

type t = Int of int | Decimal of string | String of string | List of t list | Object of (string * t) list | Other

exception Malformed of string

let fail at what = raise (Malformed (Printf.sprintf "%s at byte %d" what at))

let parse (s : string) : t =
  let n = String.length s in
  let at = ref 0 in
  let peek () = if !at < n then s.[!at] else '\000' in
  let rec blank () =
    match peek () with ' ' | '\t' | '\n' | '\r' -> incr at; blank () | _ -> () in
  let expect c = if peek () = c then incr at else fail !at (Printf.sprintf "expected %C" c) in
  let word w value =
    let l = String.length w in
    if !at + l <= n && String.sub s !at l = w then (at := !at + l; value)
    else fail !at "unknown word" in
  let is_digit c = '0' <= c && c <= '9' in
  let digits () =
    let first = !at in
    while is_digit (peek ()) do incr at done;
    if !at = first then fail !at "expected a digit";
    first in
  let number () =
    let negative = peek () = '-' in
    if negative then incr at;
    let first = digits () in
    let size = !at - first in
    if size > 1 && s.[first] = '0' then fail first "a number that begins with 0";
    if negative || size > 18 then Int (if negative then -1 else max_int)
    else Int (int_of_string (String.sub s first size)) in
  let rec string_end i =
    if i >= n then fail i "a string without end"
    else match s.[i] with
      | '"' -> i
      | '\\' -> string_end (i + 2)
      | c when c < ' ' -> fail i "a control character in a string"
      | _ -> string_end (i + 1) in
  let text () =
    expect '"';
    let first = !at in
    at := string_end first;
    let value = String.sub s first (!at - first) in
    expect '"'; value in
  let fraction first value =
    if peek () = '.' then (incr at; ignore (digits ()); Decimal (String.sub s first (!at - first)))
    else value in
  (* What can't be in the fields that matter is skipped: exponents. *)
  let exponent value =
    match peek () with
    | 'e' | 'E' ->
      incr at;
      (match peek () with '+' | '-' -> incr at | _ -> ());
      ignore (digits ()); Other
    | _ -> value in
  let rec value () =
    blank ();
    let v = match peek () with
      | '{' -> incr at; Object (fields [])
      | '[' -> incr at; List (items [])
      | '"' -> String (text ())
      | 't' -> word "true" Other
      | 'f' -> word "false" Other
      | 'n' -> word "null" Other
      | _ -> let first = !at in exponent (fraction first (number ())) in
    blank (); v
  and items so_far =
    blank ();
    if peek () = ']' && so_far = [] then (incr at; [])
    else
      let so_far = value () :: so_far in
      match peek () with
      | ',' -> incr at; items_more so_far
      | _ -> expect ']'; List.rev so_far
  and items_more so_far =
    let so_far = value () :: so_far in
    match peek () with
    | ',' -> incr at; items_more so_far
    | _ -> expect ']'; List.rev so_far
  and fields so_far =
    blank ();
    if peek () = '}' && so_far = [] then (incr at; [])
    else begin
      let name = text () in
      if List.mem_assoc name so_far then fail !at ("the field " ^ name ^ " is given twice");
      blank (); expect ':';
      let so_far = (name, value ()) :: so_far in
      match peek () with
      | ',' -> incr at; blank (); if peek () = '}' then fail !at "expected a field"; fields so_far
      | _ -> expect '}'; List.rev so_far
    end in
  let v = value () in
  if !at < n then fail !at "something after the value";
  v

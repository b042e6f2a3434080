(* Refutations of shorter pipelines as texts: one step per line, as verify/pipeline/refutation.py says.
   Trusted as refute.ml is: what it reads wrongly can only be refused, or be another right refutation. *)

open Checker
open Numbers

let failed line = failwith ("no step of a refutation: " ^ line)

(* STAGE KIND FIRST, and LAST behind a minus sign where it is another one *)
let run text =
  let n = String.length text in
  let is_digit c = '0' <= c && c <= '9' in
  let rec digits i = if i < n && is_digit text.[i] then digits (i + 1) else i in
  let value from until =
    if from = until || until - from > 9 then failed text;
    int_of_string ("0u" ^ String.sub text from (until - from)) in
  let at = digits 0 in
  if at = n then failed text;
  let kind = match text.[at] with 'F' -> F | 'I' -> I | 'W' -> W | _ -> failed text in
  let middle = digits (at + 1) in
  let first = value (at + 1) middle in
  let last =
    if middle = n then first
    else if text.[middle] = '-' && digits (middle + 1) = n then value (middle + 1) n
    else failed text in
  if last < first || last > 65535 then failed text;
  (value 0 at, kind, first, last)

let action text =
  let stage, does, first, last = run text in
  if first <> last then failed text;
  { stage = number stage; does; microbatch = number first }

let set text =
  List.map (fun part ->
      let stage, kind, first, last = run part in
      { of_stage = number stage; of_kind = kind; first = number first; howmany = number (last - first + 1) })
    (String.split_on_char ',' text)

(* Open cases wait on a stack, so that a long refutation needs no deep one. *)
type frame = Step of deduction | One of action * action | Other of action * action * case

let rec close frames tree = match frames with
  | [] -> (tree, [])
  | Step s :: rest -> close rest (Then (s, tree))
  | One (a, b) :: rest -> (tree, Other (a, b, tree) :: rest)
  | Other (a, b, first) :: rest -> close rest (Either (a, b, first, tree))

(* The tree that a text denotes. *)
let read channel =
  let words line = List.filter (fun w -> w <> "") (String.split_on_char ' ' (String.trim line)) in
  let rec go frames =
    let line = try input_line channel with End_of_file -> failwith "a case is left open" in
    let step s = go (Step s :: frames) in
    let closed tree = match close frames tree with
      | tree, [] -> tree
      | _, frames -> go frames in
    match words line with
    | ["later"; a; b] -> step (Later (action a, action b))
    | ["sooner"; a; b] -> step (Sooner (action a, action b))
    | ["raise"; x; s] -> step (Raise (action x, set s))
    | ["lower"; x; s] -> step (Lower (action x, set s))
    | ["order"; a; b] -> step (Order (action a, action b))
    | ["last"; s; x] -> step (Last (set s, action x))
    | ["first"; s; x] -> step (First (set s, action x))
    | ["room"; f; x; y] -> step (Room (action f, action x, action y))
    | ["either"; a; b] -> go (One (action a, action b) :: frames)
    | ["overload"; s] -> closed (Overload (set s))
    | ["crossed"; a; b] -> closed (Crossed (action a, action b))
    | _ -> failed line in
  let tree = go [] in
  match input_line channel with
  | line -> failwith ("a line after the end: " ^ line)
  | exception End_of_file -> tree
